# Installs moeflux on Windows: downloads the archive of a release, checks its SHA-256, and puts the program into
# %LOCALAPPDATA%\Programs\moeflux, which it adds to your PATH. Works in Windows PowerShell 5.1 and PowerShell 7.
#
#     .\install.ps1                       installs the release that this script came with
#     .\install.ps1 -Version 0.1.0        installs this version
#     .\install.ps1 -To DIR               puts the program into DIR
#     .\install.ps1 -Uninstall            removes what was installed; models and caches stay
#
# MOEFLUX_INSTALL    the folder for the program [default: %LOCALAPPDATA%\Programs\moeflux]
# MOEFLUX_BASE_URL   where archive and SHA256SUMS are: an address, or a folder (an installation without a network)
#
# Nothing is changed before the archive was checked; the program appears by rename, so a run that is cut off leaves the
# old one.
[CmdletBinding()]
param(
    [string] $Version = '@VERSION@',
    [string] $To = '',
    [switch] $Uninstall
)

# A function, so that `irm ... | iex` changes no preference of the session and a cut-off download does nothing.
function Install-Moeflux {
    param([string] $Version, [string] $To, [bool] $Uninstall)

    Set-StrictMode -Version 2.0
    $ErrorActionPreference = 'Stop'
    # Its progress bar makes downloads of Windows PowerShell slow.
    $ProgressPreference = 'SilentlyContinue'
    $repository = '@REPOSITORY@'

    $folder = $To
    if (-not $folder) { $folder = $env:MOEFLUX_INSTALL }
    if (-not $folder) { $folder = Join-Path $env:LOCALAPPDATA 'Programs\moeflux' }
    $folder = [IO.Path]::GetFullPath([IO.Path]::Combine((Get-Location).ProviderPath, $folder))
    $program = Join-Path $folder 'moeflux.exe'

    if ($Uninstall) {
        if (-not (Test-Path -LiteralPath $program -PathType Leaf)) {
            throw "there is no moeflux.exe in $folder (-To, MOEFLUX_INSTALL)"
        }
        Remove-Item -LiteralPath $program -Force
        foreach ($name in 'moeflux.old.exe', 'completions\moeflux.ps1', 'completions') {
            $rest = Join-Path $folder $name
            if (Test-Path -LiteralPath $rest) { Remove-Item -LiteralPath $rest -Force -Recurse }
        }
        if (-not (Get-ChildItem -LiteralPath $folder -Force)) { Remove-Item -LiteralPath $folder }
        Remove-FromPath $folder
        Write-Host "moeflux: removed from $folder; downloaded models and caches stay"
        return
    }

    $base = $env:MOEFLUX_BASE_URL
    if (-not $base) {
        if ("$Version$repository".Contains('@')) {
            throw 'this copy of the script belongs to no release: set MOEFLUX_BASE_URL'
        }
        $base = "$repository/releases/download/v$($Version.TrimStart('v'))"
    }
    $Version = $Version.TrimStart('v')
    if ($Version -notmatch '^[0-9A-Za-z.+-]+$') { throw "'$Version' is no version: write it like 0.1.0 (-Version)" }
    if ($env:OS -ne 'Windows_NT') { throw 'this script is for Windows: elsewhere run install.sh' }
    # A 32-bit PowerShell sees its own architecture in the first variable.
    $machine = $env:PROCESSOR_ARCHITEW6432
    if (-not $machine) { $machine = $env:PROCESSOR_ARCHITECTURE }
    # Windows on ARM runs programs for x86-64.
    if ($machine -notin 'AMD64', 'ARM64') { throw "there is no archive for Windows on ${machine}: build from source" }

    $name = "moeflux-$Version-x86_64-pc-windows-msvc"
    $work = Join-Path ([IO.Path]::GetTempPath()) ("moeflux-" + [Guid]::NewGuid().ToString('N'))
    $partial = Join-Path $folder 'moeflux.partial.exe'
    New-Item -ItemType Directory -Path $work | Out-Null
    try {
        $sums = Join-Path $work 'SHA256SUMS'
        $archive = Join-Path $work "$name.zip"
        Get-ReleaseFile $base 'SHA256SUMS' $sums
        Get-ReleaseFile $base "$name.zip" $archive
        $wanted = ''
        foreach ($line in Get-Content -LiteralPath $sums) {
            if ($line -match '^([0-9a-f]{64}) [ *](.+)$' -and $Matches[2] -eq "$name.zip") { $wanted = $Matches[1] }
        }
        if (-not $wanted) { throw "SHA256SUMS names no sum of $name.zip" }
        $found = (Get-FileHash -LiteralPath $archive -Algorithm SHA256).Hash.ToLowerInvariant()
        if ($found -ne $wanted) {
            throw "$name.zip is damaged: its SHA-256 is $found, not $wanted; nothing was installed"
        }
        Expand-Archive -LiteralPath $archive -DestinationPath $work
        $from = Join-Path $work $name

        New-Item -ItemType Directory -Path $folder -Force | Out-Null
        Copy-Item -LiteralPath (Join-Path $from 'moeflux.exe') -Destination $partial -Force
        $started = (& $partial --version) -join ' '
        if ($LASTEXITCODE -ne 0) { throw "the program does not start here (exit code $LASTEXITCODE)" }
        if ($started -ne "moeflux $Version") { throw "the archive has '$started', not version $Version" }
        # A program that runs cannot be overwritten, but it can be renamed.
        $old = Join-Path $folder 'moeflux.old.exe'
        if (Test-Path -LiteralPath $old) { Remove-Item -LiteralPath $old -Force }
        if (Test-Path -LiteralPath $program) { Move-Item -LiteralPath $program -Destination $old }
        Move-Item -LiteralPath $partial -Destination $program
        if (Test-Path -LiteralPath $old) { Remove-Item -LiteralPath $old -Force -ErrorAction SilentlyContinue }
        # In a folder of its own: beside the program, PowerShell would run it in the program's place.
        $completions = Join-Path $folder 'completions'
        New-Item -ItemType Directory -Path $completions -Force | Out-Null
        Copy-Item -LiteralPath (Join-Path $from 'completions\moeflux.ps1') -Destination $completions -Force
    } finally {
        Remove-Item -LiteralPath $work -Recurse -Force -ErrorAction SilentlyContinue
        if (Test-Path -LiteralPath $partial) { Remove-Item -LiteralPath $partial -Force }
    }

    Add-ToPath $folder
    Write-Host "moeflux: version $Version is in $folder"
    Write-Host "moeflux: completion: add the line  . '$(Join-Path $folder 'completions\moeflux.ps1')'  to `$PROFILE"
    Write-Host 'moeflux: try it: moeflux run "What does Vec::push do?"'
}

# Copies a file of the release from an address or a folder. Only loopback may lack TLS.
function Get-ReleaseFile {
    param([string] $Base, [string] $Name, [string] $Target)

    $Base = $Base.TrimEnd('/', '\')
    if ($Base -match '^http://(127\.0\.0\.1|localhost|\[::1\])([:/]|$)' -or $Base -match '^https://') {
        # Windows PowerShell does not offer TLS 1.2 by itself.
        [Net.ServicePointManager]::SecurityProtocol =
            [Net.ServicePointManager]::SecurityProtocol -bor [Net.SecurityProtocolType]::Tls12
        Invoke-WebRequest -Uri "$Base/$Name" -OutFile $Target -UseBasicParsing
    } elseif ($Base -match '^http://') {
        throw "$Base is not encrypted: give an address that begins with https:// (MOEFLUX_BASE_URL)"
    } else {
        Copy-Item -LiteralPath (Join-Path $Base $Name) -Destination $Target
    }
}

# The user's own PATH as the registry has it, with variables that are not replaced.
function Get-OwnPath {
    $key = [Microsoft.Win32.Registry]::CurrentUser.OpenSubKey('Environment')
    try {
        $key.GetValue('Path', '', [Microsoft.Win32.RegistryValueOptions]::DoNotExpandEnvironmentNames)
    } finally {
        $key.Close()
    }
}

function Set-OwnPath {
    param([string[]] $Parts)

    $key = [Microsoft.Win32.Registry]::CurrentUser.OpenSubKey('Environment', $true)
    try {
        $key.SetValue('Path', ($Parts -join ';'), [Microsoft.Win32.RegistryValueKind]::ExpandString)
    } finally {
        $key.Close()
    }
    # Setting any variable in this way tells running programs that the environment has changed.
    $variable = 'MOEFLUX_' + [Guid]::NewGuid().ToString('N')
    [Environment]::SetEnvironmentVariable($variable, '1', 'User')
    [Environment]::SetEnvironmentVariable($variable, $null, 'User')
}

function Add-ToPath {
    param([string] $Folder)

    $parts = @((Get-OwnPath) -split ';' | Where-Object { $_ })
    if ($parts -notcontains $Folder) {
        Set-OwnPath (@($Folder) + $parts)
        Write-Host "moeflux: added $Folder to your PATH; new terminals have it"
    }
    if (($env:PATH -split ';') -notcontains $Folder) { $env:PATH = "$Folder;$env:PATH" }
}

function Remove-FromPath {
    param([string] $Folder)

    $parts = @((Get-OwnPath) -split ';' | Where-Object { $_ })
    if ($parts -contains $Folder) { Set-OwnPath @($parts | Where-Object { $_ -ne $Folder }) }
}

Install-Moeflux -Version $Version -To $To -Uninstall $Uninstall.IsPresent
